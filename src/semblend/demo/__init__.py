"""The scenarios and the page of `semblend demo`."""
