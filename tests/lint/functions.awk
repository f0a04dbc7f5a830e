# SPDX-License-Identifier: MIT
# Prints FILE START LINES NAME of each function of C and CUDA sources that clang-format has formed.
#
# A head may take several lines, begins in any column (functions of a CUDA struct are indented) and ends with `) {`, perhaps with
# `const` before the brace; the function ends with the first `}` in the column where its head began. A `}` in column 0 that ends
# neither a function nor a block of extern "C" or of a namespace is printed with 0 lines: a function that was not seen.
function begins_head(line) {
  return line ~ /^ *(template|static|__global__|__device__|inline) *</ || line ~ /^ *(static|inline|__global__|__device__)/ ||
    (line ~ /^ *[a-zA-Z_~].*\(/ && line !~ /^ *(if|for|while|switch|else|do|return|case|typedef|static_assert|_Static_assert|asm)([ (]|$)/)
}
function name_of(head) {
  gsub(/__(launch_bounds|cluster_dims|maxnreg)__\([^()]*(\([^()]*\))*[^()]*\)/, "", head)
  gsub(/__attribute__\(\([^()]*(\([^()]*\))*[^()]*\)\)/, "", head)
  sub(/template <[^>]*>/, "", head)
  sub(/\(.*/, "", head)
  sub(/ *$/, "", head)
  sub(/.*[ *&]/, "", head)
  return head
}
FNR == 1 { inside = blocks = type = 0; head = "" }
inside {
  if ($0 == last) {
    print FILENAME, start, FNR - start + 1, name
    inside = 0
  }
  next
}
/^(extern "C"|namespace).*\{$/ { blocks++; next }
/^}/ && blocks > 0 && ($0 == "}" || /^} *\/\//) { blocks--; head = ""; next }
/^(typedef )?(struct|union|enum)[^()]*(\([0-9]*\))?[^()]*\{$/ { type = 1 }
/^}/ && type { type = 0; head = ""; next }
$0 == "}" { print FILENAME, FNR, 0, "?" }
/^ *(#|\/\/|\/\*|\*)/ { head = ""; next }
{
  line = $0
  sub(/ *\/\*.*\*\/$/, "", line)
  if (head == "") {
    if (!begins_head(line)) next
    head = line
    start = FNR
  } else {
    head = head " " line
  }
  if (line ~ /[;}]$/) {
    head = ""
  } else if (line ~ /\{$/) {
    if (head ~ /\)( const)? \{$/ && head !~ /= *\{$/) {
      inside = 1
      last = head
      sub(/[^ ].*/, "", last)
      last = last "}"
      name = name_of(head)
    }
    head = ""
  }
}
