"""From a Program to fused loop nests, products and a buffer plan: what backends that generate code share."""
