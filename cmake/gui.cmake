# moeplan-gui: Qt 6 Widgets and QCustomPlot, built where both are found. The program is GPL-3.0-or-later (QCustomPlot); nothing
# below it links Qt, and a test reads the built `moeplan` for it. It links the planner and the simulator, never CUDA.
option(MOEPLAN_GUI "build moeplan-gui where Qt 6 and QCustomPlot are found" ON)
set(MOEPLAN_GUI_FLAGS -O1 CACHE STRING "how the window is optimised")
mark_as_advanced(MOEPLAN_GUI_FLAGS)
if(NOT MOEPLAN_GUI)
  return()
endif()
find_package(Qt6 6.4 QUIET COMPONENTS Widgets PrintSupport Svg)
find_package(QCustomPlotQt6 QUIET)
find_library(QCUSTOMPLOT_LIBRARY NAMES QCustomPlotQt6)
find_path(QCUSTOMPLOT_INCLUDE_DIR qcustomplot.h)
if(NOT Qt6Widgets_FOUND OR NOT Qt6PrintSupport_FOUND OR NOT Qt6Svg_FOUND OR NOT QCUSTOMPLOT_LIBRARY OR NOT QCUSTOMPLOT_INCLUDE_DIR)
  message(STATUS "Qt 6 (Widgets, PrintSupport, Svg) or QCustomPlot for Qt 6 not found; moeplan-gui is skipped")
  return()
endif()

file(GLOB_RECURSE gui_sources CONFIGURE_DEPENDS gui/*.cpp gui/*.hpp)
list(FILTER gui_sources EXCLUDE REGEX "gui/main\\.cpp$")
add_library(moeplan_gui_rooms STATIC ${gui_sources})
set_target_properties(moeplan_gui_rooms PROPERTIES AUTOMOC ON)
target_include_directories(moeplan_gui_rooms SYSTEM PUBLIC ${QCUSTOMPLOT_INCLUDE_DIR})
# Drawing needs no more than -O1, and half the cold build is spent after the headers are read.
target_compile_options(moeplan_gui_rooms PRIVATE ${MOEPLAN_GUI_FLAGS})
target_precompile_headers(moeplan_gui_rooms PRIVATE gui/precompiled.hpp)
target_compile_definitions(moeplan_gui_rooms PUBLIC QT_NO_KEYWORDS)
target_link_libraries(moeplan_gui_rooms PUBLIC moeplan_planner Qt6::Widgets Qt6::PrintSupport Qt6::Svg ${QCUSTOMPLOT_LIBRARY} Threads::Threads)

add_executable(moeplan_gui gui/main.cpp)
set_target_properties(moeplan_gui PROPERTIES OUTPUT_NAME moeplan-gui)
target_precompile_headers(moeplan_gui REUSE_FROM moeplan_gui_rooms)
target_compile_options(moeplan_gui PRIVATE ${MOEPLAN_GUI_FLAGS})
target_link_libraries(moeplan_gui PRIVATE moeplan_gui_rooms)
target_compile_definitions(moeplan_gui PRIVATE MOEPLAN_VERSION="${PROJECT_VERSION}" MOEPLAN_CONFIGS="${CMAKE_SOURCE_DIR}/configs" MOEPLAN_PROGRAM="$<TARGET_FILE:moeplan>")

# The window's tests run without a display; the platform is set here, so that a developer can set another.
find_package(Qt6 6.4 QUIET COMPONENTS Test)
file(GLOB gui_test_sources CONFIGURE_DEPENDS tests/gui/*.cpp)
if(Qt6Test_FOUND AND gui_test_sources)
  add_executable(gui_tests ${gui_test_sources})
  target_precompile_headers(gui_tests REUSE_FROM moeplan_gui_rooms)
  target_compile_options(gui_tests PRIVATE ${MOEPLAN_GUI_FLAGS})
  target_link_libraries(gui_tests PRIVATE moeplan_gui_rooms Qt6::Test GTest::gtest)
  target_compile_definitions(gui_tests PRIVATE MOEPLAN_SOURCE="${CMAKE_SOURCE_DIR}" MOEPLAN_CONFIGS="${CMAKE_SOURCE_DIR}/configs" MOEPLAN_PROGRAM="$<TARGET_FILE:moeplan>" MOEPLAN_GUI_PROGRAM="$<TARGET_FILE:moeplan_gui>")
  add_dependencies(gui_tests moeplan moeplan_gui)
  gtest_discover_tests(gui_tests NO_PRETTY_VALUES DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 600 LABELS gui ENVIRONMENT QT_QPA_PLATFORM=offscreen)
endif()

# The monkey: `ninja -C build monkey` sends 20,000 random events to a window that AddressSanitizer watches, and is no part of "all". gui/ is
# compiled a second time for it; what it links (planner, simulator, Qt) is the ordinary build's. Leaks are not asked for: Qt and
# fontconfig keep what they once read.
if(TARGET gui_tests)
  add_library(moeplan_gui_asan STATIC EXCLUDE_FROM_ALL ${gui_sources})
  set_target_properties(moeplan_gui_asan PROPERTIES AUTOMOC ON)
  target_include_directories(moeplan_gui_asan SYSTEM PUBLIC ${QCUSTOMPLOT_INCLUDE_DIR})
  target_compile_options(moeplan_gui_asan PUBLIC ${MOEPLAN_GUI_FLAGS} -fsanitize=address -fno-omit-frame-pointer)
  target_precompile_headers(moeplan_gui_asan PRIVATE gui/precompiled.hpp)
  target_compile_definitions(moeplan_gui_asan PUBLIC QT_NO_KEYWORDS)
  target_link_libraries(moeplan_gui_asan PUBLIC moeplan_planner Qt6::Widgets Qt6::PrintSupport Qt6::Svg ${QCUSTOMPLOT_LIBRARY} Threads::Threads)
  target_link_options(moeplan_gui_asan PUBLIC -fsanitize=address)
  add_executable(gui_monkey EXCLUDE_FROM_ALL tests/gui/main.cpp tests/gui/monkey_test.cpp)
  target_precompile_headers(gui_monkey REUSE_FROM moeplan_gui_asan)
  target_link_libraries(gui_monkey PRIVATE moeplan_gui_asan Qt6::Test GTest::gtest)
  target_compile_definitions(gui_monkey PRIVATE $<TARGET_PROPERTY:gui_tests,COMPILE_DEFINITIONS>)
  add_custom_target(monkey
    COMMAND ${CMAKE_COMMAND} -E env QT_QPA_PLATFORM=offscreen ASAN_OPTIONS=detect_leaks=0:malloc_context_size=6 MOEPLAN_MONKEY=20000 $<TARGET_FILE:gui_monkey>
    DEPENDS gui_monkey VERBATIM USES_TERMINAL)
endif()
