#!/bin/sh
# The first chapters of Genesis in the King James version (1611, no copyright), as Debian's bible-kjv prints them; verse numbers are left out.
# Needs: apt-get install bible-kjv
set -e
bible -f gen1:1-4:26 | sed 's/^Ge[0-9]*:[0-9]* //' > "$(dirname "$0")/genesis.txt"
