"""Reports: what people see. Publication, the weekly report, figures. Reads mart tables only."""
