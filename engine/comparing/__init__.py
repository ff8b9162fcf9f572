"""One prompt and several arms that answer it: what is asked, and how answers are put side by side."""
