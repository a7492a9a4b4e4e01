"""From logits to text: sampling, grammars and the events of an answer."""
