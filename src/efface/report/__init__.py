"""Reports: figures as SVG text, and one self-contained HTML file that opens anywhere, offline."""
