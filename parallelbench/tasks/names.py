"""The people of the waiting line: our own lists of common given and family names."""

FIRST_NAMES = (
    "Ada Alan Alma Amy Ben Boris Carla Cecil Clara Dan Dora Edith Elsa Emil Erik Eva "
    "Felix Fiona Frida Gina Gustav Hana Hugo Ida Igor Iris Ivan Jana Jonas Julia Karl Kira "
    "Lara Leo Lena Lucas Mara Max Mia Milan Nadia Nils Nora Olga Oscar Otto Paula Petra "
    "Pia Quinn Ralf Rosa Rita Sam Sara Silas Sofia Theo Tina Tom Ulla Vera Viktor Willa"
).split()

LAST_NAMES = (
    "Abbott Adler Archer Bach Baker Banks Barton Becker Bishop Blum Bolt Brandt Brook Carver Chase Clay "
    "Cole Cooper Crane Cross Dalton Decker Drake Eaton Ellis Fischer Fleming Forbes Foster Frost Gibson Graf "
    "Grant Green Hale Hansen Harper Hart Hayes Heller Holt Hughes Huber Jansen Jensen Keller Kent Klein "
    "Knight Koch Krause Kramer Lane Larsen Lindt Lowe Maier Marsh Mercer Meyer Moss Nolan North Novak "
    "Olsen Page Parker Payne Perry Porter Quist Reed Rivers Roth Schmidt Shaw Simmons Sommer Steele Stone "
    "Tanner Thorne Turner Vogel Wagner Walker Walsh Ward Weber Wells West Wilde Winter Wolf York Young "
    "Ziegler Zimmer"
).split()
