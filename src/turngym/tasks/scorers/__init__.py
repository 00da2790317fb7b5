"""Parts of judges: each is called with a world and returns a ``JudgeResult``."""
