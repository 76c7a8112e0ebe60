"""The paper's tables and figures as runnable experiments, each beside the published values.

`table` says what a study is, `paper/` holds them, `runner` runs any of them and knows none.
"""
