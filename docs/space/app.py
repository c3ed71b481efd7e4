"""The page as a Hugging Face Space: this file, and a requirements.txt with the line lightfast[page]."""

import lightfast as lf

lf.page(open_browser=False)
