"""SemBlend finds K/V an engine has already computed and plans its safe reuse."""
