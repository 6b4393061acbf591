-- ARGV: now, the mark. Stores it and returns ''; or returns the stored mark if the new one may not replace it.
return Mark.write(ARGV[2]) or ''
