"""Reports: runs as one HTML page without network access, and the same page of a run that is still going.

`content` gathers what the page shows as one JSON object; `words` makes its verdict, and `prototype_map` the positions
of embeddings and prototypes. `page` writes the HTML, `live` serves it. This package may import pictures, measures and
everything below them.
"""
