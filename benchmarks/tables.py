"""Tables in Markdown, written whole or printed row by row as figures come."""

import math


def line(cells):
    return f"| {' | '.join(map(str, cells))} |"


def formatted(forms, *values):
    """Cells of numbers, by formats with spaces between them, such as ``".1f .0%"``."""
    return [format(value, form) for form, value in zip(forms.split(), values, strict=True)]


def with_deviation(values, digits=0):
    """Text of the mean of values, with their standard deviation if there are several."""
    values = [float(value) for value in values]
    mean = sum(values) / len(values)
    if len(values) == 1:
        return f"{mean:.{digits}f}"
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return f"{mean:.{digits}f} ± {deviation:.{digits}f}"


def header(columns):
    return f"{line(columns)}\n{'|---' * len(columns)}|"


def table(columns, rows):
    """Markdown of ``rows``; one with fewer cells than columns, because something failed, ends in empty cells."""
    return "\n".join([header(columns), *(line(_filled(row, columns)) for row in rows)])


def show(columns, rows):
    """Print a table, each row as soon as the iterable ``rows`` has it."""
    print(header(columns))
    for row in rows:
        print(line(_filled(row, columns)), flush=True)


def _filled(row, columns):
    row = list(row)
    if len(row) > len(columns):
        raise ValueError(f"A row has {len(row)} cells, expected at most {len(columns)}, one for each column: {row}.")
    return row + [""] * (len(columns) - len(row))
