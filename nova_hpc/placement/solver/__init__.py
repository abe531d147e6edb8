"""The exact search behind choose() and judge(). Nobody else imports from here."""
