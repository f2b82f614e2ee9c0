"""Forecasts of series: windows of CSV, TSV, Parquet or Arrow, a linear model, MASE."""
