#pragma once
/// What nearly every file of the window includes and nobody here changes, compiled once (cmake/gui.cmake); files still name what they use.

#include "gui/widgets/qcp.hpp"

#include <QAbstractTableModel>
#include <QAction>
#include <QApplication>
#include <QBoxLayout>
#include <QComboBox>
#include <QGridLayout>
#include <QHeaderView>
#include <QLabel>
#include <QLineEdit>
#include <QMainWindow>
#include <QMenu>
#include <QPainter>
#include <QSplitter>
#include <QTableView>
#include <QTextBrowser>
#include <QToolButton>
#include <fmt/format.h>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <variant>
#include <vector>
#include <algorithm>
#include <functional>
#include <memory>
#include <optional>

