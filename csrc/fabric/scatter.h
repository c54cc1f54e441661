// Scatter: what repeated measurements of one thing, or of equal things, say together.
#pragma once

#include <vector>

namespace q7x2 {

/// 0 if there are no values.
double median(std::vector<double> values);

/// Makes rates that may well be equal equal: each group of rates within 20 % of its least gets its
/// median. Rates of 0 are not known, and stay.
void even_out(std::vector<double*> rates);

}  // namespace q7x2
