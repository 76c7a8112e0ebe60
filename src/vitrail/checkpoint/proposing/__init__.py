"""A table of names proposed for a file that no layout recognises: by shapes, counts, order, and words in names."""
