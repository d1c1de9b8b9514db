"""Steppe's Python side: data preparation and whatever else its ecosystem does best."""
