"""A shop: django-oscar."""
