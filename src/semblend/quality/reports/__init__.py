"""Figures for people: charts, tables and a certificate's report."""
