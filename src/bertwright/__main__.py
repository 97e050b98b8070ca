from bertwright.cli import main

main()
