"""The synchronous face for Gymnasium: wrappers, vector environments, registration."""
