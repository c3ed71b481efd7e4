"""What this site needs beyond Sphinx: tutorials that are executed, records that become tables, a whole reference."""
