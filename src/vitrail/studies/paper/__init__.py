"""The studies, a file each: cells, and what is read off them."""
