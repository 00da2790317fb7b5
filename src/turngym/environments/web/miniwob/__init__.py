"""MiniWoB++: small web tasks with rewards of their own."""
