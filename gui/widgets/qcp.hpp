#pragma once
/// QCustomPlot, whose header needs Qt's keywords. They are gone after it: `slots` is a member of our programs.

#define signals Q_SIGNALS
#define slots Q_SLOTS
#define emit Q_EMIT
#define foreach Q_FOREACH
#include <qcustomplot.h>
#undef signals
#undef slots
#undef emit
#undef foreach
