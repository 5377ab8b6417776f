"""The C++ side of an evaluation, by the names it has in topkv._core; see the stub beside it."""

from topkv._core import _eval

Directory = _eval.Directory
Method = _eval.Method
Sample = _eval.Sample
Score = _eval.Score
ScoreRow = _eval.ScoreRow
ScoreTable = _eval.ScoreTable
Task = _eval.Task
bytes_read = _eval.bytes_read
default_directory = _eval.default_directory
make_tasks = _eval.make_tasks
parse_method = _eval.parse_method
parse_tasks = _eval.parse_tasks
split_methods = _eval.split_methods
squad_f1 = _eval.squad_f1
