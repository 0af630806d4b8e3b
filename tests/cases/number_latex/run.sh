# Numbers above 999 and fractions in LaTeX: 1{,}234 is 1234, \frac{18}{5} is not 18.
python -W ignore - <<"END"
import json
from fractions import Fraction
from parallelbench.tasks.mathematics import read_number
rows = [json.loads(line) for line in open("texts.jsonl")]
print(sum(read_number(row["text"]) != Fraction(row["number"]) for row in rows), "wrong")
END
