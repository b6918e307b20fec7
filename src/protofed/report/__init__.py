"""Reports: runs as one HTML page without network access, and the same page of a run that is still going.

`content` gathers what the page shows as one JSON object, and `words` makes its verdict. `page` writes the HTML, `live`
serves it. This package may import pictures, measures and everything below them.
"""
