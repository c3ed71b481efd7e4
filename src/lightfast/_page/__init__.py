"""The local page: what the commands do, in a browser. Each tab is a file; they parse, call and show."""
