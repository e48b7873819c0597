"""The page of `cosent demo`: what it answers, as HTML, and its layout in Gradio."""
