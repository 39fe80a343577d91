"""Translation of many lines, and trained models exported to CTranslate2 and ONNX."""
