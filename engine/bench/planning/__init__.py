"""Plans: what varies, the requests, the resulting configurations, and what they will take."""
