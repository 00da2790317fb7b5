"""Reports: what finished runs say, as tables, plots and a viewer.

``runs`` reads training runs, ``comparison`` puts the runs of one environment side by side,
``evaluations`` reads evaluations back, compares them and makes their tables, ``tables`` writes
Markdown, CSV and JSON and makes images. ``viewer`` shows episodes in a browser.
"""
