"""A wiki: MediaWiki."""
