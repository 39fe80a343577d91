"""What models and encodings are probed for: attention, losses, decodings; no matplotlib."""
