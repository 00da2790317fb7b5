"""A forum: django-machina."""
