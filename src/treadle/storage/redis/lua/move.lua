-- ARGV: now, the mark.   Answers the stored mark if that refuses the new one, else ''.
return M.write(ARGV[2]) or ''
