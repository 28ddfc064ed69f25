"""The two formats of J. Johannsson: colon-separated text and XML."""
