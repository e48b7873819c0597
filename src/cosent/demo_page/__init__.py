"""The page of `cosent demo`: answers as HTML, and their layout in Gradio."""
