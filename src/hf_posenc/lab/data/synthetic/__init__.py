"""The embedded generator of German-English sentences: vocabulary, grammar, sampling."""
