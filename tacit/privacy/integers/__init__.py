"""Integer noise, drawn to within 2^-200 of its law: `discrete` by tables, `wide` by rejection, `exact` slowly and without
error."""
