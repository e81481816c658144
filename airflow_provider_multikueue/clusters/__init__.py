"""One API server: how it is reached, asked, and watched. Nothing here knows Kueue or jobs."""
