"""The copy of a run behind a URL: made while it goes on, and fetched back where the run is lost."""
