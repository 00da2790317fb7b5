"""An agent made of parts: a chat model, a prompt, a history, a memory of failed attempts."""
