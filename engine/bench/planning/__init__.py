"""Plans: what varies, what is asked, the cells that come of it, and what they would take."""
