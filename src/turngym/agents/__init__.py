"""Who acts: policies, engines, rendering, scripted experts."""
