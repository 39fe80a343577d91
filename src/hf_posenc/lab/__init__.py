"""The lab: what trains, scores, tabulates and draws. The library does not import it."""
